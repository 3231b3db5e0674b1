# What the gate needs of the kernel; a site without one loses nothing by it.
FILESEXTRAPATHS:prepend := "${THISDIR}/files:"
SRC_URI:append = " file://vestibule-gate.cfg"
