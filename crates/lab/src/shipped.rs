//! The scenarios and contenders that come with the program.

include!(concat!(env!("OUT_DIR"), "/shipped.rs"));
