//! Sets of keys (JWKS): any text is refused or read, and read the same way each time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_keys(data));
