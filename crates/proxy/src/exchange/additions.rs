//! What responses get besides their own fields and those of endpoints: CORS, the id of the request, limits, cookies, changes of the route.

use super::*;
use crate::policy::response_rewrite::Rewriting;

/// What our own response to this request gets besides its own fields.
pub(super) fn additions<'e>(
    env: &Env<'e>,
    record: &'e AccessRecord,
    request: &'e Request,
    (quotas, cookies): (Option<&'e Quotas>, Option<&'e Cookies>),
) -> Additions<'e> {
    let request_id = record.request_id.as_deref().filter(|_| responds_with_id(env));
    let changes = own_changes(env, record, request);
    Additions { cors: cors(env, record.route, request), request_id, quotas, cookies, changes }
}

/// What the route of a request changes in responses of our own.
fn own_changes<'e>(env: &Env<'e>, record: &'e AccessRecord, request: &Request) -> Option<OwnChanges<'e>> {
    let route = env.route(record.route?)?;
    let changes = &route.policy.own_headers;
    if changes.is_empty() {
        return None;
    }
    let client = Client { request_id: record.request_id.as_deref(), ..stages::client(env) };
    let values = Values {
        head: &request.head,
        buffer: &request.bytes,
        client: &client,
        names: Names {
            listener: &env.listener.plan.policy.name,
            route: &route.name,
            cluster: record.cluster.as_ref().map_or("", |cluster| &cluster.plan.policy.name),
        },
        endpoint: None,
    };
    Some(OwnChanges::new(changes, &values))
}

/// Whether clients get the ids of their requests.
pub(super) fn responds_with_id(env: &Env<'_>) -> bool {
    env.http.request_id.is_some_and(|rules| rules.in_response)
}

/// The fields of CORS in the response to this request, if the route with this index decides them.
pub(super) fn cors<'e>(env: &Env<'e>, route: Option<usize>, request: &'e Request) -> Option<CorsEdits<'e>> {
    let cors = env.route(route?)?.policy.cors.as_deref()?;
    Some(CorsEdits::new(cors, &request.head, &request.bytes))
}

/// How URLs and cookies in the response to this request are changed.
pub(super) fn rewriting<'e>(env: &Env<'_>, of: &'e RoutePolicy, request: &'e Request) -> Option<Rewriting<'e>> {
    let rules = of.response_rewrite.as_deref()?;
    let client = stages::client(env);
    let scheme = policy::scheme(&ask::view(request, env, &client));
    Some(Rewriting { rules, scheme, authority: request.head.authority.get(&request.bytes) })
}
