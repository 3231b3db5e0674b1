"""One appraisal by keylime, many times: quote, PCR values, event log, EK certificate.

Reads one JSON object from the file that is named, prints one to standard output. Only the appraisal is timed:
processor time of this process and of the children it waits for (tpm2_eventlog).
"""

import base64
import json
import resource
import struct
import sys

from keylime import cert_utils
from keylime.mba import mba
from keylime.tpm.tpm_main import Tpm

SHA256 = 0x000B


def cpu_seconds():
    spent = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def pcr_blob(values):
    """PCR selection and values as tpm2_quote writes them: TPML_PCR_SELECTION and TPML_DIGESTs as C lays them out."""
    numbers = sorted(map(int, values))
    bits = sum(1 << number for number in numbers)
    one = struct.pack("<HB", SHA256, 3) + bits.to_bytes(3, "little") + b"\0\0"
    blob = struct.pack("<I", 1) + one + bytes(15 * 8)
    groups = [numbers[at : at + 8] for at in range(0, len(numbers), 8)]
    blob += struct.pack("<I", len(groups))
    for group in groups:
        blob += struct.pack("<I", len(group))
        for number in group:
            blob += struct.pack("<H", 32) + bytes.fromhex(values[str(number)]) + bytes(32)
        blob += bytes(66 * (8 - len(group)))
    return blob


def main():
    with open(sys.argv[1], encoding="ascii") as file:
        task = json.load(file)
    mba.load_imports(skip_custom_policies=True)
    raw = {name: bytes.fromhex(task[name]) for name in ("attest", "signature", "ak", "nonce", "event_log", "ek_cert")}
    parts = (raw["attest"], raw["signature"], pcr_blob(task["pcrs"]))
    quote = "r" + ":".join(base64.b64encode(part).decode() for part in parts)
    spent = []
    for _ in range(task["times"] + 1):
        before = cpu_seconds()
        ek_good = cert_utils.verify_ek(raw["ek_cert"], task["ek_store"])
        failure = Tpm().check_quote(
            None,
            raw["nonce"],
            None,
            quote,
            raw["ak"],
            mb_measurement_list=raw["event_log"],
            mb_policy='{"vestibule": "accept-all reads no reference state"}',
        )
        spent.append(cpu_seconds() - before)
        if not ek_good:
            sys.exit("keylime refuses the EK certificate")
        if failure:
            sys.exit("keylime refuses the evidence: " + ", ".join(failure.get_event_ids()))
    # The first one loads modules and the library that reads device paths.
    json.dump({"seconds": spent[1:]}, sys.stdout)


main()
