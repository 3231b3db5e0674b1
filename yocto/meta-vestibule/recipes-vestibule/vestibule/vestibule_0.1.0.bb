SUMMARY = "Attestation gateway for machines that boot from the network"
DESCRIPTION = "DHCP, TFTP and HTTPS boot, TPM 2.0 attestation and device certificates, in one daemon"
SECTION = "network"
LICENSE = "MIT | Apache-2.0"
LIC_FILES_CHKSUM = "file://LICENSE;md5=d9778ea44df9092507b8bc6c24d909ae"

CVE_PRODUCT = "vestibule"

DEPENDS = "tpm2-tss"

# Not kept in the tree: Cargo.lock says it all and yocto/tests/crates_inc.py writes it.
require vestibule-crates.inc

SRC_URI += "\
    file://vestibule.service \
    file://vestibule.sysusers \
    file://vestibule.tmpfiles \
    file://vestibule.sysctl \
    file://vestibule.toml \
"

inherit cargo externalsrc features_check pkgconfig systemd useradd

REQUIRED_DISTRO_FEATURES = "systemd seccomp tpm2"

# This layer is part of the source tree: build what is checked out.
EXTERNALSRC = "${@os.path.normpath('${THISDIR}/../../../..')}"

CARGO_BUILD_FLAGS += "--package gateway --bin vestibule"

SYSTEMD_SERVICE:${PN} = "vestibule.service"

USERADD_PACKAGES = "${PN}"
GROUPADD_PARAM:${PN} = "--system vestibule"
USERADD_PARAM:${PN} = "--system --no-create-home --home-dir ${localstatedir}/lib/vestibule --shell ${base_sbindir}/nologin \
                       --gid vestibule --comment 'Vestibule daemon' vestibule"

do_install() {
    install -d ${D}${bindir}
    install -m 0755 ${B}/target/${CARGO_TARGET_SUBDIR}/vestibule ${D}${bindir}/vestibule

    install -d ${D}${systemd_system_unitdir}
    install -m 0644 ${UNPACKDIR}/vestibule.service ${D}${systemd_system_unitdir}/vestibule.service

    install -d ${D}${nonarch_libdir}/sysusers.d ${D}${nonarch_libdir}/tmpfiles.d ${D}${nonarch_libdir}/sysctl.d
    install -m 0644 ${UNPACKDIR}/vestibule.sysusers ${D}${nonarch_libdir}/sysusers.d/vestibule.conf
    install -m 0644 ${UNPACKDIR}/vestibule.tmpfiles ${D}${nonarch_libdir}/tmpfiles.d/vestibule.conf
    install -m 0644 ${UNPACKDIR}/vestibule.sysctl ${D}${nonarch_libdir}/sysctl.d/60-vestibule.conf

    install -d ${D}${sysconfdir}/vestibule
    install -m 0644 ${UNPACKDIR}/vestibule.toml ${D}${sysconfdir}/vestibule/vestibule.toml
}

FILES:${PN} += "${nonarch_libdir}/sysusers.d ${nonarch_libdir}/tmpfiles.d ${nonarch_libdir}/sysctl.d"
CONFFILES:${PN} = "${sysconfdir}/vestibule/vestibule.toml"

# tss2 loads its transport by name at run time; tpm2-tss brings the udev rule and the group tss.
RDEPENDS:${PN} = "libtss2 libtss2-tcti-device tpm2-tss"
