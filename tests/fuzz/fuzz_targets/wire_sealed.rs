#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vestibule_fuzz::wire::sealed(data));
