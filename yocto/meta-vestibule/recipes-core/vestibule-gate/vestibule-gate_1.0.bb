SUMMARY = "Routing between machines and uplink behind the Vestibule gate"
DESCRIPTION = "The privilege, the program and the kernel settings that [gate] backend = nftables needs"
SECTION = "network"
LICENSE = "MIT"
# nooelint: oelint.var.licenseremotefile - four configuration files carry no licence text
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/MIT;md5=0835ade698e0bcf8506ecda2f7b4f302"

CVE_PRODUCT = "vestibule"

SRC_URI = "\
    file://10-gate.conf \
    file://vestibule-gate.nft \
    file://vestibule-gate.service \
    file://vestibule-gate.sysctl \
"

S = "${UNPACKDIR}"

inherit features_check systemd

REQUIRED_DISTRO_FEATURES = "systemd"

SYSTEMD_SERVICE:${PN} = "vestibule-gate.service"

do_configure[noexec] = "1"
do_compile[noexec] = "1"

do_install() {
    install -d ${D}${systemd_system_unitdir}/vestibule.service.d ${D}${nonarch_libdir}/sysctl.d ${D}${nonarch_libdir}/vestibule
    install -m 0644 ${S}/vestibule-gate.service ${D}${systemd_system_unitdir}/vestibule-gate.service
    install -m 0644 ${S}/10-gate.conf ${D}${systemd_system_unitdir}/vestibule.service.d/10-gate.conf
    install -m 0644 ${S}/vestibule-gate.nft ${D}${nonarch_libdir}/vestibule/gate.nft
    install -m 0644 ${S}/vestibule-gate.sysctl ${D}${nonarch_libdir}/sysctl.d/61-vestibule-gate.conf
}

FILES:${PN} += "${systemd_system_unitdir} ${nonarch_libdir}/sysctl.d ${nonarch_libdir}/vestibule"

# nftables is meta-networking's.
RDEPENDS:${PN} = "nftables vestibule"
