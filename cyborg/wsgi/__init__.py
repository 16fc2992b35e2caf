# SPDX-License-Identifier: Apache-2.0
"""WSGI entry modules for servers such as uWSGI."""
