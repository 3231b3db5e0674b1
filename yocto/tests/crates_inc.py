#!/usr/bin/env python3
"""Writes vestibule-crates.inc from Cargo.lock: what BitBake fetches, with checksums.

crates_inc.py Cargo.lock > yocto/meta-vestibule/recipes-vestibule/vestibule/vestibule-crates.inc

Decides nothing: every locked package that comes from a registry becomes one line of SRC_URI and
one checksum. A package without checksum, or from a git repository, is refused: the recipe's build
has no network after the fetch.
"""

import re
import sys
import tomllib


def registry_host(source):
    """`registry+URL/HOST-index` to HOST, the host part of BitBake's crate:// address."""
    found = re.fullmatch(r"registry\+.*/([^/]+)-index/?", source)
    if not found:
        raise ValueError(f"source {source!r} is no registry index that BitBake's crate fetcher knows")
    return found.group(1)


def render(lock):
    """The text of the include file for a parsed Cargo.lock."""
    uris, sums = [], []
    for package in lock["package"]:
        source = package.get("source")
        if source is None:
            continue  # a member of the workspace
        name, version = package["name"], package["version"]
        if "checksum" not in package:
            raise ValueError(f"{name} {version} has no checksum in Cargo.lock")
        uris.append(f"    crate://{registry_host(source)}/{name}/{version} \\\n")
        sums.append(f'SRC_URI[{name}-{version}.sha256sum] = "{package["checksum"]}"\n')
    head = "# Generated from Cargo.lock by yocto/tests/crates_inc.py.\n\n"
    return head + 'SRC_URI += "\\\n' + "".join(uris) + '"\n\n' + "".join(sums)


def main():
    if len(sys.argv) != 2:
        print("usage: crates_inc.py Cargo.lock", file=sys.stderr)
        return 2
    try:
        with open(sys.argv[1], "rb") as file:
            sys.stdout.write(render(tomllib.load(file)))
    except (OSError, ValueError) as error:
        print(f"crates_inc.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
