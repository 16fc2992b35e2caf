# SPDX-License-Identifier: Apache-2.0
"""Groups of oslo.privsep's options, one for each helper of the agent that has privileges.

The library registers them itself, so this is for the sample and for checks of an operator's files.
"""

from __future__ import annotations

from oslo_config import cfg
from oslo_privsep import priv_context

GROUPS = ("cyborg_sys_admin", "cyborg_nvme", "cyborg_program", "cyborg_watch")


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Every option of the helpers, for ``oslo-config-generator``."""
    return [(group, list(priv_context.OPTS)) for group in GROUPS]
