//! Values that are a plain text, or an object for what plain text cannot express.

/// A value that is either.
pub trait TextOrObject {
    /// The object.
    type Object;

    /// The object, if it is one.
    fn object(&self) -> Option<&Self::Object>;
}

/// A value that is a plain text, or an object for what plain text cannot express.
macro_rules! text_or_object {
    ($(#[doc = $doc:literal])* $raw:ident = $text:ty | $object:ty) => {
        $(#[doc = $doc])*
        #[derive(Debug)]
        pub enum $raw {
            Text($text),
            // Boxed, because some are large.
            Object(Box<$object>),
        }

        impl $crate::raw::TextOrObject for $raw {
            type Object = $object;

            fn object(&self) -> Option<&$object> {
                match self {
                    Self::Text(_) => None,
                    Self::Object(object) => Some(object),
                }
            }
        }

        impl Read for $raw {
            fn kind() -> Kind {
                Kind::Either(vec![<$text as Read>::kind(), <$object as Read>::kind()])
            }

            fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
                match &node.value {
                    Value::Scalar { text, .. } => match <$text as Scalar>::parse(text) {
                        Ok(value) => Some(Self::Text(value)),
                        Err(wrong) => {
                            let other = || format!("it can also be {}", <$object as Read>::kind().expected());
                            let message = format!("{subject}: {}", wrong.message);
                            report.add(node.location, Wrong::new(message).hint(wrong.hint.unwrap_or_else(other)));
                            None
                        }
                    },
                    Value::Map(_) => <$object as Read>::read(node, subject, report).map(Box::new).map(Self::Object),
                    other => {
                        report.add(node.location, unexpected(subject, &Self::kind(), other));
                        None
                    }
                }
            }
        }
    };
}
