//! Renders a contender's templates.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;

use super::Recipe;
use crate::record::Variant;

/// The variables of a template.
#[derive(Clone, Debug, Serialize)]
pub struct Vars {
    /// The program's path.
    pub program: String,
    /// The configuration's path.
    pub file: String,
    /// The contender's own directory.
    pub dir: String,
    /// Worker threads or processes.
    pub workers: u32,
    /// Links of the balancer's namespace.
    pub interfaces: Vec<String>,
    /// `client` or `server`: the pod in which it runs; empty if it runs between them.
    pub pod: &'static str,
    /// A directory that it shares with its like in the other pod.
    pub shared: String,
    /// The control group (version 2) of the load; empty on a host without that version.
    pub load_cgroup: String,
    /// A PEM file with the certificate of services over TLS, and its key; empty if the run has none.
    pub certificate: String,
    /// The services to balance.
    pub services: Vec<ServiceVars>,
}

/// An address to listen on, and the origins behind it.
#[derive(Clone, Debug, Serialize)]
pub struct ServiceVars {
    /// A word that begins with a letter.
    pub name: String,
    /// A name of [`Protocol`](crate::record::Protocol).
    pub protocol: &'static str,
    /// The address to listen on.
    pub address: String,
    /// The port to listen on.
    pub port: u16,
    /// At least one.
    pub endpoints: Vec<EndpointVars>,
}

/// An origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndpointVars {
    /// A word that begins with a letter.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Its port.
    pub port: u16,
}

/// The result for a contender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text of its configuration; empty if it has none.
    pub configuration: String,
    /// Commands that set it up.
    pub setup: Vec<Vec<String>>,
    /// Its command; empty if it has no process.
    pub start: Vec<String>,
}

/// Fills the templates.
///
/// # Errors
/// If the contender does not have the variant, or a template uses an unknown name, with its line.
pub fn render(recipe: &Recipe, variant: Variant, vars: &Vars) -> Result<Rendered, String> {
    let template =
        recipe.configuration(variant).ok_or_else(|| format!("{} has no default configuration", recipe.name))?;
    let environment = environment()?;
    let fill = |template: &str| environment.render_str(template, Serde(vars)).map_err(|error| explain(&error));
    let words = |words: &[String]| words.iter().map(|word| fill(word)).collect::<Result<Vec<_>, _>>();
    Ok(Rendered {
        configuration: fill(template)?,
        setup: recipe.setup.iter().map(|command| words(command)).collect::<Result<_, _>>()?,
        start: words(&recipe.start)?,
    })
}

/// Fills a command that runs before there is a configuration.
pub(super) fn render_probe(words: &[String], program: &str) -> Result<Vec<String>, String> {
    let environment = environment()?;
    let context = minijinja::context! { program };
    words.iter().map(|word| environment.render_str(word, context.clone()).map_err(|error| explain(&error))).collect()
}

/// Checks whether a template can be read and filled with services of any kind, in the pod `pod`.
pub(super) fn check(template: &str, pod: &'static str) -> Result<(), String> {
    let endpoint = EndpointVars { name: "ep0".into(), address: "127.0.0.1".into(), port: 1 };
    let service = ServiceVars {
        name: "s0".into(),
        protocol: "http",
        address: "127.0.0.1".into(),
        port: 1,
        endpoints: vec![endpoint.clone(), endpoint],
    };
    let vars = Vars {
        program: "/p".into(),
        file: "/f".into(),
        dir: "/d".into(),
        workers: 2,
        interfaces: vec!["client0".into()],
        pod,
        shared: "/s".into(),
        load_cgroup: "/c".into(),
        certificate: "/t".into(),
        services: vec![service.clone(), service],
    };
    environment()?.render_str(template, Serde(&vars)).map(drop).map_err(|error| explain(&error))
}

fn environment() -> Result<Environment<'static>, String> {
    let mut environment = Environment::new();
    // A mistyped name is an error, not an empty string in the configuration.
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    // A line that only has a tag leaves no line behind.
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
    environment.set_syntax(syntax.map_err(|error| error.to_string())?);
    Ok(environment)
}

fn explain(error: &minijinja::Error) -> String {
    let place = error.line().map_or_else(String::new, |line| format!("line {line} of the template: "));
    format!("{place}{}", error.detail().map_or_else(|| error.kind().to_string(), str::to_owned))
}
