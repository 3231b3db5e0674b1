SUMMARY = "Vestibule appliance image"
DESCRIPTION = "The attestation gateway on a read-only root with one data partition."
SECTION = "images"
LICENSE = "MIT"

CVE_PRODUCT = "vestibule"

inherit core-image

# No ssh, no debug tools, no package manager: the admin endpoint is the way in.
IMAGE_FEATURES = "read-only-rootfs"
IMAGE_LINGUAS = ""

IMAGE_INSTALL = "\
    packagegroup-core-boot \
    kernel-modules \
    vestibule \
    vestibule-gate \
    vestibule-net \
"

# Machines boot our image for years; the rootfs carries no more than it needs.
IMAGE_ROOTFS_EXTRA_SPACE = "0"
IMAGE_OVERHEAD_FACTOR = "1.1"
NO_RECOMMENDATIONS = "1"
