# SPDX-License-Identifier: Apache-2.0
"""The REST API: requests, answers, pages, versions and the servers under it."""
