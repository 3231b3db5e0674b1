#!/usr/bin/env python3
"""Parses the layer with BitBake's own parser and compares it with the tree it is to build.

Runs in the virtual environment of yocto/tests/run (PyPI `bitbake-setup` carries the parser). There
is no openembedded-core here: the classes that the recipes inherit are empty stand-ins, made from
the list CLASSES. So syntax, variables and our own consistency are checked, tasks are not.

Prints one `PASS name` or `FAIL name why` for each check.
"""

import hashlib
import pathlib
import re
import shlex
import sys
import tempfile
import tomllib
import types

# The wheel carries the parser but not the hash equivalence client, which only signatures use.
sys.modules["hashserv"] = types.ModuleType("hashserv")
sys.modules["hashserv.client"] = types.ModuleType("hashserv.client")

import bb.data
import bb.data_smart
import bb.fetch2
import bb.parse

import crates_inc

LAYER = pathlib.Path(__file__).resolve().parents[1] / "meta-vestibule"
ROOT = LAYER.parents[1]
DAEMON = LAYER / "recipes-vestibule/vestibule/vestibule_0.1.0.bb"
UNIT = DAEMON.parent / "files/vestibule.service"

# Classes of openembedded-core 6.0 that our recipes may inherit.
CLASSES = "cargo core-image externalsrc features_check pkgconfig systemd useradd"
# What openembedded-core's bitbake.conf would set, as far as our recipes use it.
CORE = {
    "BP": "${BPN}-${PV}",
    "BPN": "${PN}",
    "B": "${WORKDIR}/build",
    "S": "${UNPACKDIR}/${BP}",
    "CARGO_TARGET_SUBDIR": "x86_64/release",
    "COMMON_LICENSE_DIR": "/nonexistent",
    "DL_DIR": "/nonexistent",
    "FILESPATH": "${FILE_DIRNAME}/files",
    "PERSISTENT_DIR": "/nonexistent",
    "PN": "${@bb.parse.vars_from_file(d.getVar('FILE', False), d)[0]}",
    "PV": "${@bb.parse.vars_from_file(d.getVar('FILE', False), d)[1]}",
    "THISDIR": "${@os.path.dirname(d.getVar('FILE', False))}",
    "UNPACKDIR": "${WORKDIR}/sources",
    "WORKDIR": "/nonexistent",
    "base_sbindir": "/usr/sbin",
    "bindir": "/usr/bin",
    "localstatedir": "/var",
    "nonarch_libdir": "/usr/lib",
    "sysconfdir": "/etc",
    "systemd_system_unitdir": "/usr/lib/systemd/system",
    "systemd_unitdir": "/usr/lib/systemd",
}


def base_data(stubs, bbclasstype):
    """A data store as BitBake has it before it parses a recipe."""
    d = bb.data_smart.DataSmart()
    d.setVar("BB_SIGNATURE_HANDLER", "noop")
    d.setVar("BBPATH", f"{LAYER}:{stubs}")
    d.setVar("TOPDIR", str(stubs))
    d.setVar("__bbclasstype", bbclasstype)
    for key, value in CORE.items():
        d.setVar(key, value)
    bb.parse.init_parser(d)
    return d


def parse_recipe(path, stubs):
    """The recipe's variables."""
    return bb.parse.handle(str(path), base_data(stubs, "recipe"))[""]


def parse_conf(path, stubs, **more):
    """The variables of a layer, distro or machine configuration."""
    d = base_data(stubs, "global")
    for key, value in more.items():
        d.setVar(key, value)
    return bb.parse.handle(str(path), d, True)


def expect(what, found, wanted):
    """Raises with both values when they differ."""
    if found != wanted:
        raise AssertionError(f"{what}: expected {wanted!r}, found {found!r}")


def lock():
    with open(ROOT / "Cargo.lock", "rb") as file:
        return tomllib.load(file)


def check_layer_conf(stubs):
    d = parse_conf(LAYER / "conf/layer.conf", stubs, LAYERDIR=str(LAYER))
    expect("LAYERSERIES_COMPAT_vestibule", d.getVar("LAYERSERIES_COMPAT_vestibule"), "wrynose")
    patterns = d.getVar("BBFILES").split()
    reached = {p for pattern in patterns for p in LAYER.glob(pattern.removeprefix(f"{LAYER}/"))}
    reached = {p for p in reached if p.suffix == ".bb"}
    expect("recipes that BBFILES reaches", reached, set(LAYER.rglob("*.bb")))


def check_distro_and_machine(stubs):
    distro = parse_conf(LAYER / "conf/distro/vestibule.conf", stubs, DISTRO="vestibule")
    overrides = distro.getVar("DISTROOVERRIDES").split(":")
    for recipe in LAYER.rglob("*.bb"):
        name = recipe.name.removesuffix(".bb").split("_")[0]
        if name in overrides:
            raise AssertionError(f"recipe {name} has the name of an override")
    if "/var/lib" in distro.getVar("VOLATILE_BINDS").split():
        raise AssertionError("/var/lib is volatile: the ledger would be lost at each boot")

    wks = (LAYER / "files/wic/vestibule.wks.in").read_text()
    names = re.findall(r"^part (\S+) .*--part-name (\S+)", wks, re.MULTILINE)
    expect("partitions", names, [("/boot", "esp"), ("/", "root"), ("/var/lib", "data")])
    machine = parse_conf(LAYER / "conf/machine/vestibule-qemux86-64.conf", stubs)
    expect("WKS_FILE", machine.getVar("WKS_FILE"), "vestibule.wks.in")
    words = machine.getVar("UKI_CMDLINE").split()
    for word in ("root=PARTLABEL=root", "ro"):
        if word not in words:
            raise AssertionError(f"{word} is missing from UKI_CMDLINE")


def check_recipes(stubs):
    for recipe in sorted(LAYER.rglob("*.bb")):
        d = parse_recipe(recipe, stubs)
        for key in ("SUMMARY", "LICENSE", "PN", "PV"):
            if not d.getVar(key):
                raise AssertionError(f"{recipe.name}: {key} is empty")
        for name in re.findall(r"file://([^\s;]+)", d.getVar("SRC_URI") or ""):
            if not (recipe.parent / "files" / name).is_file():
                raise AssertionError(f"{recipe.name}: no files/{name}")


def check_daemon(stubs):
    d = parse_recipe(DAEMON, stubs)
    with open(ROOT / "Cargo.toml", "rb") as file:
        workspace = tomllib.load(file)["workspace"]["package"]
    expect("PV", d.getVar("PV"), workspace["version"])
    expect("LICENSE", d.getVar("LICENSE").replace(" | ", " OR "), workspace["license"])
    expect("EXTERNALSRC", d.getVar("EXTERNALSRC"), str(ROOT))
    digest = hashlib.md5((ROOT / "LICENSE").read_bytes()).hexdigest()
    expect("LIC_FILES_CHKSUM", d.getVar("LIC_FILES_CHKSUM"), f"file://LICENSE;md5={digest}")

    install = d.getVar("do_install")
    for name in re.findall(r"file://([^\s;]+)", d.getVar("SRC_URI")):
        if f"/{name}" not in install:
            raise AssertionError(f"do_install forgets {name}")
    start = re.search(r"^ExecStart=(\S+)", UNIT.read_text(), re.MULTILINE).group(1)
    if f"${{D}}{start}" not in d.expand(install).replace(d.getVar("D") or "${D}", "${D}"):
        raise AssertionError(f"do_install does not install {start}, which the unit starts")


def check_user(stubs):
    """The user of the recipe, of sysusers.d and of the unit are one."""
    d = parse_recipe(DAEMON, stubs)
    words = shlex.split(d.getVar("USERADD_PARAM:vestibule"))
    option = {key: words[words.index(key) + 1] for key in ("--home-dir", "--shell", "--comment")}
    lines = [shlex.split(line) for line in (UNIT.parent / "vestibule.sysusers").read_text().splitlines()]
    user = next(line for line in lines if line[:1] == ["u"])
    expect("sysusers.d", user[1:], [words[-1], "-", *(option[k] for k in ("--comment", "--home-dir", "--shell"))])
    unit = UNIT.read_text()
    expect("User=", re.search(r"^User=(.*)$", unit, re.MULTILINE).group(1), words[-1])
    state = re.search(r"^StateDirectory=(.*)$", unit, re.MULTILINE).group(1)
    expect("StateDirectory=", f"/var/lib/{state}", option["--home-dir"])


def check_crates(stubs):
    """What BitBake would fetch is exactly what Cargo.lock names, with its checksums."""
    d = parse_recipe(DAEMON, stubs)
    urls = [url for url in d.getVar("SRC_URI").split() if url.startswith("crate://")]
    found = {}
    for url in urls:
        data = bb.fetch2.FetchData(url, d)
        found[data.parm["name"]] = data.sha256_expected
    wanted = {f"{p['name']}-{p['version']}": p["checksum"] for p in lock()["package"] if "source" in p}
    expect("number of crates", len(urls), len(wanted))
    for name, checksum in wanted.items():
        expect(f"checksum of {name}", found.get(name), checksum)
    if len(wanted) < 100:
        raise AssertionError(f"only {len(wanted)} crates: the lock file was not read")


def check_crates_refuse(_stubs):
    """A lock file that BitBake could not fetch without trust is refused."""
    source = next(p["source"] for p in lock()["package"] if "source" in p)
    wrong = {
        "no checksum": {"name": "a", "version": "1.0.0", "source": source},
        "a git source": {"name": "a", "version": "1.0.0", "source": "git+ssh://host/a#1", "checksum": "00"},
    }
    for what, package in wrong.items():
        try:
            crates_inc.render({"package": [package]})
        except ValueError:
            continue
        raise AssertionError(f"{what} was not refused")


def check_parser_refuses(stubs):
    """The parser is really there: a copy of each recipe passes, and fails with one broken line."""
    for recipe in sorted(LAYER.rglob("*.bb")):
        broken = pathlib.Path(stubs) / recipe.name
        text = recipe.read_text().replace("require vestibule-crates.inc\n", "")
        broken.write_text(text)
        parse_recipe(broken, stubs)
        for what, line in (("bad line", "LICENSE MIT\n"), ("unknown class", "inherit no-such-class\n")):
            broken.write_text(text + line)
            try:
                parse_recipe(broken, stubs)
            except (bb.parse.ParseError, bb.BBHandledException):
                continue
            raise AssertionError(f"{recipe.name} with a {what} was accepted")


CHECKS = [
    ("bitbake-parses-layer-conf", check_layer_conf),
    ("bitbake-parses-distro-and-machine", check_distro_and_machine),
    ("bitbake-parses-recipes", check_recipes),
    ("bitbake-refuses-broken-recipes", check_parser_refuses),
    ("daemon-recipe-agrees-with-workspace", check_daemon),
    ("daemon-user-is-one", check_user),
    ("crates-inc-equals-cargo-lock", check_crates),
    ("crates-inc-refuses-untrusted-sources", check_crates_refuse),
]


def main():
    failed = False
    with tempfile.TemporaryDirectory() as stubs:
        classes = pathlib.Path(stubs) / "classes-recipe"
        classes.mkdir()
        for name in CLASSES.split():
            (classes / f"{name}.bbclass").touch()
        core = pathlib.Path(stubs) / "conf/machine"
        core.mkdir(parents=True)
        (core / "qemux86-64.conf").touch()
        (pathlib.Path(stubs) / "classes").mkdir()
        (pathlib.Path(stubs) / "classes/base.bbclass").touch()
        for name, check in CHECKS:
            try:
                check(stubs)
                print(f"PASS {name}", flush=True)
            except Exception as error:  # each check reports its own failure; the next one still runs
                failed = True
                why = " ".join(str(error).split()) or type(error).__name__
                print(f"FAIL {name} {why}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
