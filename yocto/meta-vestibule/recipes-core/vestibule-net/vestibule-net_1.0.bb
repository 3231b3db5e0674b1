SUMMARY = "Interface roles of the Vestibule appliance"
DESCRIPTION = "Names the provisioning interface prov and gives it its static address"
SECTION = "network"
LICENSE = "MIT"
# nooelint: oelint.var.licenseremotefile - two configuration files carry no licence text
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/MIT;md5=0835ade698e0bcf8506ecda2f7b4f302"

CVE_PRODUCT = "vestibule"

SRC_URI = "\
    file://10-prov.link \
    file://10-prov.network \
"

S = "${UNPACKDIR}"

inherit features_check

REQUIRED_DISTRO_FEATURES = "systemd"

do_configure[noexec] = "1"
do_compile[noexec] = "1"

do_install() {
    install -d ${D}${systemd_unitdir}/network
    install -m 0644 ${S}/10-prov.link ${D}${systemd_unitdir}/network/10-prov.link
    install -m 0644 ${S}/10-prov.network ${D}${systemd_unitdir}/network/10-prov.network
}

PACKAGE_ARCH = "${MACHINE_ARCH}"

FILES:${PN} += "${systemd_unitdir}/network"
