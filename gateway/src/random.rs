//! Randomness for the cores, which take it as an argument.

/// Fills `out` from the operating system's generator.
///
/// # Panics
/// When the generator is broken: nothing of what this daemon does is safe then.
pub fn fill(out: &mut [u8]) {
    aws_lc_rs::rand::fill(out).expect("the operating system's random generator works");
}
