# SPDX-License-Identifier: Apache-2.0
"""Project, Accelerators, Device Profiles: what can be asked for, and how a flavor does."""

from __future__ import annotations

from django import urls
from django.utils import html, safestring
from horizon import tables

from cyborg_dashboard import pages
from cyborg_dashboard.api import Row
from cyborg_dashboard.tables import Table, column


def _flavor_property(row: Row) -> safestring.SafeString:
    """The property as a text that one click selects."""
    return html.format_html(
        '<code style="user-select: all">accel:device_profile={}</code>', row["name"]
    )


class OfferedProfiles(Table):
    """The profiles that the project may use."""

    name = column("name")
    description = column("description")
    groups = column("groups")
    fits = column("fits", verbose_name="The cloud has such devices")
    flavor_property = tables.Column(_flavor_property, verbose_name="Flavor property")

    class Meta:
        """Options."""

        name = "profiles"
        verbose_name = "Device Profiles"


class OfferedProfilesView(pages.ListView):
    """The list."""

    page_title = "Device Profiles"
    table_class = OfferedProfiles
    collection = "device_profiles"


urlpatterns = [urls.path("", OfferedProfilesView.as_view(), name="index")]
