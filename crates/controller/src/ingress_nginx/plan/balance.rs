//! How endpoints are chosen: `load-balance` and `upstream-hash-by`.

use serde_json::{Value, json};

use super::variables::{Part, parts, variable};
use super::{Reading, Verdict};

impl Reading<'_> {
    /// The field `balance` of a cluster.
    pub(super) fn balance(&mut self) -> Value {
        let mut balance = json!({"algorithm": "round_robin"});
        match self.either("load-balance") {
            Some("ewma") => balance = json!({"algorithm": "peak_ewma"}),
            Some("round_robin") | None => {}
            Some(_) => self.tell("load-balance", Verdict::NoEffect, "upstream-hash-by and affinity choose it"),
        }
        let Some(by) = self.text("upstream-hash-by") else {
            const OF_IT: [&str; 2] = ["upstream-hash-by-subset", "upstream-hash-by-subset-size"];
            self.idle(&OF_IT, "without upstream-hash-by, it has no effect");
            return balance;
        };
        match hash_key(by.trim_matches('"')) {
            Ok(key) => match self.subset() {
                Some(size) => json!({"maglev": {"key": key, "subset": size}}),
                None => json!({"maglev": {"key": key}}),
            },
            Err(why) => {
                self.tell("upstream-hash-by", Verdict::Refused, &format!("{why}; round robin instead"));
                balance
            }
        }
    }

    /// How many endpoints a key has; `None` means one.
    fn subset(&mut self) -> Option<u64> {
        const SIZE: &str = "upstream-hash-by-subset-size";
        if !self.bool("upstream-hash-by-subset", false) {
            self.idle(&[SIZE], "without upstream-hash-by-subset, it has no effect");
            return None;
        }
        let wanted = self.int(SIZE).filter(|size| *size > 0).unwrap_or(3);
        if wanted > model::SUBSET_MAX as u64 {
            self.tell(SIZE, Verdict::Differs, &format!("a key has {} endpoints at most", model::SUBSET_MAX));
        }
        Some(wanted.min(model::SUBSET_MAX as u64)).filter(|size| *size > 1)
    }
}

/// The key of the hash.
///
/// # Errors
/// Says in a sentence what of it is not understood.
fn hash_key(by: &str) -> Result<Value, String> {
    if by.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
        return Err("a key is one line of printable ASCII".to_owned());
    }
    let parts = parts(by, variable)?;
    let unknown: Vec<&str> = parts.iter().filter_map(|part| part.as_ref().err().map(String::as_str)).collect();
    if !unknown.is_empty() {
        let known = "the address of the client, $request_uri, $uri, $args, $arg_NAME, $host, $http_NAME, $cookie_NAME, $scheme, \
            $request_method, $server_port and text are";
        return Err(format!("{} cannot be hashed; {known}", unknown.join(", ")));
    }
    let parts: Vec<Part> = parts.into_iter().flatten().collect();
    if let [Part::Variable(name)] = parts.as_slice() {
        match name.split_once('.') {
            _ if name == "client_ip" => return Ok(json!({"clientIp": true})),
            Some(("header", header)) => return Ok(json!({"header": header})),
            Some(("cookie", cookie)) => return Ok(json!({"cookie": cookie})),
            _ => {}
        }
    }
    if !parts.iter().any(|part| matches!(part, Part::Variable(_))) {
        return Err("all requests would have the same key".to_owned());
    }
    Ok(json!({"template": parts.iter().map(Part::written).collect::<String>()}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_nginx() {
        let check = |by: &str, expect: Value| assert_eq!(hash_key(by), Ok(expect), "{by}");
        for by in ["$remote_addr", "$binary_remote_addr", "$the_real_ip", "${remote_addr}"] {
            check(by, json!({"clientIp": true}));
        }
        check("$http_x_user", json!({"header": "x-user"}));
        check("$cookie_JSESSIONID", json!({"cookie": "JSESSIONID"}));
        check("$request_uri", json!({"template": "${target}"}));
        check("$host$uri$is_args$args", json!({"template": "${host}${path}?${query}"}));
        check("${arg_User}-text:$http_x_a$server_port", json!({"template": "${query.user}-text:${header.x-a}${port}"}));
        check("$http_host", json!({"template": "${authority}"}));
        check("$scheme$request_method", json!({"template": "${scheme}${method}"}));
        let refused = |by: &str, part: &str| {
            let why = hash_key(by).unwrap_err();
            assert!(why.contains(part), "{by}: {why}");
        };
        refused("$upstream_addr$uri$geoip_city", "$upstream_addr, $geoip_city cannot be hashed");
        refused("text", "the same key");
        refused("$", "before no name");
        refused("a${b", "has no end");
        refused("$http_", "$http_ cannot be hashed");
        refused("$uri\n$args", "one line");
    }
}
