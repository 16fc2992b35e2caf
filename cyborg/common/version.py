# SPDX-License-Identifier: Apache-2.0
"""The version of the installed distribution."""

import pbr.version

VERSION: str = pbr.version.VersionInfo("openstack-cyborg").version_string()
