# SPDX-License-Identifier: Apache-2.0
"""Options for telling Nova of bound accelerator requests."""

from oslo_config import cfg

#: The keystoneauth options of the group are registered beside these. Without ``auth_type`` there
#: is no Nova: events are logged.
OPTS: list[cfg.Opt] = []
