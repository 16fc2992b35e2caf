# SPDX-License-Identifier: Apache-2.0
"""Project, Accelerators, Device Profiles: what can be asked for, and how a flavor does."""

from __future__ import annotations

from django import urls
from django.utils import html, safestring

from cyborg_dashboard import pages
from cyborg_dashboard.api import Row
from cyborg_dashboard.tables import table


def _flavor_property(row: Row) -> safestring.SafeString:
    """The property as a text that one click selects."""
    return html.format_html(
        '<code style="user-select: all">accel:device_profile={}</code>', row["name"]
    )


_PROFILES = table(
    *("profiles", "Device Profiles", "name", "description", "groups", "fits"),
    headings={"fits": "The cloud has such devices"},
    computed={"flavor_property": _flavor_property},
)


class OfferedProfilesView(pages.ListView):
    """The list."""

    page_title = "Device Profiles"
    table_class = _PROFILES
    collection = "device_profiles"


urlpatterns = [urls.path("", OfferedProfilesView.as_view(), name="index")]
