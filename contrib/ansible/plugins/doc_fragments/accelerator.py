# SPDX-License-Identifier: Apache-2.0
"""The arguments that all modules have."""


class ModuleDocFragment:
    """Read by ansible-doc."""

    DOCUMENTATION = """
options:
  cloud:
    description: A cloud of clouds.yaml. Without it the OS_* variables are read.
    type: str
requirements:
  - openstacksdk
"""
