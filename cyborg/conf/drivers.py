# SPDX-License-Identifier: Apache-2.0
"""Option groups of the drivers, gathered so that every service accepts the whole file."""

from oslo_config import cfg

FAKE_OPTS: list[cfg.Opt] = [
    cfg.IntOpt("devices", default=1, min=0, help="How many devices the fake driver shows."),
    cfg.IntOpt(
        "handles_per_device",
        default=16,
        min=0,
        max=256,
        help="How many attach handles each fake device has.",
    ),
    cfg.BoolOpt(
        "host_step",
        default=False,
        help="Let each fake handle be prepared before use and cleaned afterwards on the host.",
    ),
    cfg.StrOpt(
        "host_step_control",
        help="File that is read at each host step: a JSON object with the keys prepare and clean, "
        'each {"seconds": N, "fail": "sentence", "hang": true}. It makes a step slow, fail or '
        "hang on demand. A step that hangs goes on when the file no longer says so.",
    ),
]

PCI_OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "device_spec",
        default=[],
        deprecated_name="passthrough_whitelist",
        help="Which PCI devices pci_driver reports: a JSON object, or a list of them, in the "
        "grammar of Nova's [pci] device_spec, with the keys vendor_id, product_id, address (a "
        "string with globs, or an object with a regular expression a field) and devname, and "
        "the tags resource_class and traits. The first that matches a device counts. May be "
        "given several times.",
    ),
]
