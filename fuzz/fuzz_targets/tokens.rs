//! Tokens that nobody has signed: none passes, and what their payload says would be headers that cannot be misread.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::look_at_token(data));
