//! The C library's heap, told how a daemon that is mostly idle wants it.
//!
//! Decides nothing about who allocates what.

/// Allocations from this size on are mappings of their own, given back when they are freed. Without
/// a fixed size glibc raises it to the largest block ever freed (up to 32 MiB) and keeps as much
/// free memory on top of the heap: an artefact that was served once would never leave the process.
const MAPPED_FROM_BYTES: i32 = 256 * 1024;
/// Free memory on top of the heap that is kept for the next allocation.
const KEPT_FREE_BYTES: i32 = 128 * 1024;
/// Heaps beside each other. glibc makes up to eight for each processor, and each keeps what was once
/// used in it; our threads that allocate much are the few of the runtime.
const ARENAS_MAX: i32 = 2;

/// Sets up the heap; to be called once, before the first thread is started. Where the C library is
/// not glibc this does nothing.
pub fn configure() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [
        (nix::libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES),
        (nix::libc::M_TRIM_THRESHOLD, KEPT_FREE_BYTES),
        (nix::libc::M_ARENA_MAX, ARENAS_MAX),
    ] {
        // SAFETY: mallopt only stores numbers for later allocations, under the heap's own lock. A value
        // that it refuses leaves the default.
        let _accepted = unsafe { nix::libc::mallopt(option, value) };
    }
}

/// Gives the kernel back what is free in between: after a start, whose many passing allocations leave
/// holes. Costs some milliseconds; where the C library is not glibc this does nothing.
pub fn release() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim touches only free memory of the heap, under its lock.
        let _any_released = unsafe { nix::libc::malloc_trim(0) };
    }
}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    /// Both tests measure the whole process.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// Resident memory of this process in KiB.
    fn rss_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        kib.and_then(|kib| kib.parse().ok()).expect("VmRSS")
    }

    #[test]
    fn holes_are_given_back_on_request() {
        let _alone = ALONE.lock();
        // Too small to be mappings of their own, and one in sixteen stays.
        let mut blocks: Vec<Option<Vec<u8>>> = (0..16_384).map(|_| Some(vec![1; 1024])).collect();
        let full = rss_kib();
        for (index, block) in blocks.iter_mut().enumerate() {
            if index % 16 != 0 {
                *block = None;
            }
        }
        super::release();
        let after = rss_kib();
        assert!(after + 8_000 < full, "{full} KiB, then {after} KiB");
        assert!(blocks.iter().flatten().all(|block| block[0] == 1));
    }

    #[test]
    fn large_blocks_are_given_back_each_time() {
        let _alone = ALONE.lock();
        super::configure();
        const BLOCK: usize = 24 << 20;
        let before = rss_kib();
        for fill in 1..4_u8 {
            let block = std::hint::black_box(vec![fill; BLOCK]);
            assert!(
                rss_kib() >= before + (BLOCK as u64 >> 11),
                "held while used"
            );
            drop(block);
            let after = rss_kib();
            assert!(
                after < before + (BLOCK as u64 >> 12),
                "{before} KiB before, {after} KiB after"
            );
        }
    }
}
