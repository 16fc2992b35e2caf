# SPDX-License-Identifier: Apache-2.0
"""Horizon's settings for tests, with this plugin enabled and policies checked."""

# mypy: ignore-errors
# ruff: noqa: F403, F405

from __future__ import annotations

import socket

import openstack_dashboard.enabled
from openstack_dashboard.test.settings import *
from openstack_dashboard.utils import settings as settings_utils

import cyborg_dashboard.enabled

INSTALLED_APPS = [app for app in INSTALLED_APPS if ".dashboards." not in app]
settings_utils.update_dashboards(
    [openstack_dashboard.enabled, cyborg_dashboard.enabled], HORIZON_CONFIG, INSTALLED_APPS
)
POLICY_CHECK_FUNCTION = "openstack_auth.policy.check"
POLICY_FILES = {}
DEFAULT_POLICY_FILES = {}
ROOT_URLCONF = "openstack_dashboard.urls"
ALLOWED_HOSTS = ["*"]
# Pages are looked at without their style.
COMPRESS_ENABLED = False
COMPRESS_PRECOMPILERS = ()
# Horizon's tests talk to nobody, and give up after a second.
socket.setdefaulttimeout(None)
