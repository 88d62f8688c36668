//! gRPC services and methods.

use model::GrpcMatcher;

use crate::define::Form;
use crate::diagnostic::{Wrong, quoted};
use crate::read::Formed;

/// Characters of a service or method. Names in generated code have some tens of characters. A path has to fit into a head.
const NAME_CHARS_MAX: usize = 512;

/// `package.Service`, or `package.Service/Method`, as in the .proto file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcName(pub GrpcMatcher);

/// The service that a health check asks about. The protocol allows any text, and by convention it is the name of a service. The empty text
/// means the endpoint as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcService(pub String);

impl Formed for GrpcName {
    const FORM: Form = Form {
        noun: "a service, or a service and a method",
        example: "helloworld.Greeter/SayHello",
        pattern: Some("^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*(/[A-Za-z_][A-Za-z0-9_]*)?$"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = || Wrong::new(format!("{} is not a gRPC service", quoted(text)));
        if let Some(rest) = text.strip_prefix('/') {
            let bare = quoted(rest.trim_end_matches('/'));
            return Err(wrong().hint(format!("remove the leading `/`: {}", bare.trim_matches('"'))));
        }
        if text.contains('*') || text.ends_with('/') {
            return Err(
                wrong().hint("the name of the service alone, such as helloworld.Greeter, matches all its methods")
            );
        }
        let (service, method) = match text.split_once('/') {
            Some((service, method)) => (service, Some(method)),
            None => (text, None),
        };
        if !service.split('.').all(is_identifier) || !method.is_none_or(is_identifier) {
            let hint = "write it as in the .proto file: package.Service, or package.Service/Method";
            return Err(wrong().hint(hint));
        }
        if text.len() > NAME_CHARS_MAX {
            return Err(wrong().hint(format!("it is longer than {NAME_CHARS_MAX} characters")));
        }
        Ok(Self(GrpcMatcher { service: service.to_owned(), method: method.map(str::to_owned) }))
    }
}

/// `letter { letter | digit | "_" }` (Protocol Buffers, language specification, "Identifiers"). Generators also accept a leading `_`.
fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl Formed for GrpcService {
    const FORM: Form = Form { noun: "the name of a service", example: "helloworld.Greeter", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if text.chars().any(char::is_control) {
            return Err(Wrong::new(format!("{} contains a control character", quoted(text))));
        }
        if text.contains('/') {
            let hint = "a health check asks about a service, not a method: write helloworld.Greeter";
            return Err(Wrong::new(format!("{} is not the name of a service", quoted(text))).hint(hint));
        }
        if text.len() > NAME_CHARS_MAX {
            return Err(Wrong::new(format!("{} is longer than {NAME_CHARS_MAX} bytes", quoted(text))));
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_and_methods_are_written_as_in_the_proto_file() {
        let check = |text: &str, expect: &str| {
            let shown = GrpcName::parse(text).map_or_else(
                |wrong| wrong.to_string(),
                |GrpcName(GrpcMatcher { service, method })| format!("{service} {}", method.unwrap_or_default()),
            );
            assert_eq!(shown, expect, "{text:?}");
        };
        check("helloworld.Greeter", "helloworld.Greeter ");
        check("helloworld.Greeter/SayHello", "helloworld.Greeter SayHello");
        check("Greeter", "Greeter ");
        check("a.b.c_1.D2/_m", "a.b.c_1.D2 _m");
        check(
            "/helloworld.Greeter/SayHello",
            r#""/helloworld.Greeter/SayHello" is not a gRPC service; remove the leading `/`: helloworld.Greeter/SayHello"#,
        );
        check(
            "helloworld.Greeter/*",
            r#""helloworld.Greeter/*" is not a gRPC service; the name of the service alone, such as helloworld.Greeter, matches all its methods"#,
        );
        check(
            "helloworld.Greeter/",
            r#""helloworld.Greeter/" is not a gRPC service; the name of the service alone, such as helloworld.Greeter, matches all its methods"#,
        );
        for bad in ["", ".", "a..b", "a.b/c/d", "a b", "1a.B", "a.B/", "a-b.C", "ä.B"] {
            assert!(GrpcName::parse(bad).is_err(), "{bad:?}");
        }
        assert!(GrpcName::parse(&"a".repeat(NAME_CHARS_MAX)).is_ok());
        assert!(GrpcName::parse(&"a".repeat(NAME_CHARS_MAX + 1)).is_err());
    }

    #[test]
    fn a_health_check_asks_about_a_service_or_the_whole() {
        let check = |text: &str, expect: &str| {
            let shown = GrpcService::parse(text).map_or_else(|wrong| wrong.to_string(), |GrpcService(name)| name);
            assert_eq!(shown, expect, "{text:?}");
        };
        check("", "");
        check("helloworld.Greeter", "helloworld.Greeter");
        check("liveness", "liveness");
        check("a\nb", r#""a\nb" contains a control character"#);
        check(
            "a.B/C",
            r#""a.B/C" is not the name of a service; a health check asks about a service, not a method: write helloworld.Greeter"#,
        );
    }
}
