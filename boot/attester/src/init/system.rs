//! What a kernel leaves to its first program: mounts, modules, and the end.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::RebootMode;

use super::RUN;
use crate::console::say;
use crate::gather::IMAGE_NAME;

/// Modules to load, one a line, in order: absolute paths, or names below `/lib/modules`.
const MODULES_LIST: &str = "/etc/modules.order";
/// Power off once admitted; for the lab.
const POWEROFF_WORD: &str = "vestibule.poweroff=1";

/// Mounts the kernel's file systems and makes our folder in `/run`. What is mounted already, or does not exist on this machine
/// (EFI variables), is left alone.
pub(super) fn mount_all() {
    for (kind, target) in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/run"),
        ("securityfs", "/sys/kernel/security"),
    ] {
        mount_one(kind, target);
    }
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(RUN);
    if let Err(error) = made {
        say("boot", &format!("{RUN}: {error}"));
    }
}

fn mount_one(kind: &str, target: &str) {
    let _ = std::fs::create_dir_all(target);
    let flags = match kind {
        "devtmpfs" => MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC,
        _ => MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC | MsFlags::MS_NODEV,
    };
    match mount(Some(kind), target, Some(kind), flags, None::<&str>) {
        Ok(()) | Err(Errno::EBUSY) => {}
        Err(errno) => say("boot", &format!("mounting {target}: {errno}")),
    }
}

/// Loads the listed modules; one that fails is named and skipped. EFI variables come after, since
/// their file system may be a module.
pub(super) fn load_modules() {
    let list = std::fs::read_to_string(MODULES_LIST).unwrap_or_default();
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let path = Path::new("/lib/modules").join(line);
        let loaded = File::open(&path)
            .map_err(|error| error.to_string())
            .and_then(|file| load_module(&file).map_err(|errno| errno.to_string()));
        if let Err(why) = loaded {
            say("boot", &format!("module {}: {why}", path.display()));
        }
    }
    if Path::new("/sys/firmware/efi/efivars").exists() {
        mount_one("efivarfs", "/sys/firmware/efi/efivars");
    }
}

fn load_module(file: &File) -> nix::Result<()> {
    match finit_module(file, c"", ModuleInitFlags::empty()) {
        // ENODEV: a driver for something this machine does not have.
        Err(Errno::EEXIST | Errno::ENODEV) => Ok(()),
        other => other,
    }
}

/// What the image calls itself.
pub(super) fn image_name() -> String {
    let name = std::fs::read_to_string(IMAGE_NAME).unwrap_or_default();
    match name.trim() {
        "" => "without a name".to_owned(),
        name => name.to_owned(),
    }
}

/// TCTI of the TPM 2.0, or why there is none.
pub(super) fn tpm_tcti() -> Result<String, &'static str> {
    let version = std::fs::read_to_string("/sys/class/tpm/tpm0/tpm_version_major");
    if version.is_ok_and(|version| version.trim() == "1") {
        return Err("this machine has a TPM 1.2, which is too old: a TPM 2.0 is needed");
    }
    // The resource manager first: it flushes what a process leaves behind.
    for device in ["/dev/tpmrm0", "/dev/tpm0"] {
        if Path::new(device).exists() {
            return Ok(format!("device:{device}"));
        }
    }
    Err("this machine shows no TPM: /dev/tpm* is absent")
}

/// Nothing more to do: powers off if the command line says so, else stays.
pub(super) fn rest() -> ! {
    let command_line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    if command_line
        .split_whitespace()
        .any(|word| word == POWEROFF_WORD)
    {
        say("end", "powering off");
        nix::unistd::sync();
        end(RebootMode::RB_POWER_OFF);
    }
    say(
        "end",
        "the machine stays at the door: nothing is to be installed",
    );
    loop {
        std::thread::park();
    }
}

/// The disk is written: powers off if the command line says so, else resets the machine.
pub(super) fn leave() -> ! {
    let command_line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    nix::unistd::sync();
    let off = command_line
        .split_whitespace()
        .any(|word| word == POWEROFF_WORD);
    end(match off {
        true => RebootMode::RB_POWER_OFF,
        false => RebootMode::RB_AUTOBOOT,
    })
}

/// Resets the machine.
pub(super) fn reboot() -> ! {
    nix::unistd::sync();
    end(RebootMode::RB_AUTOBOOT)
}

fn end(mode: RebootMode) -> ! {
    // It only returns when it failed.
    let Err(errno) = nix::sys::reboot::reboot(mode);
    say("end", &format!("cannot leave: {errno}"));
    loop {
        std::thread::park();
    }
}
