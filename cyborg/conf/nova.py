# SPDX-License-Identifier: Apache-2.0
"""Options for sending events about accelerator requests to Nova."""

from oslo_config import cfg

#: The group has keystoneauth's options only. Without ``auth_type`` there is no Nova, and events are
#: logged.
OPTS: list[cfg.Opt] = []
