# SPDX-License-Identifier: Apache-2.0
"""What is done to one member of a collection, some of it with a reason: one form for all of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from django import http, urls
from horizon import forms, tables

from cyborg_dashboard import api, pages
from cyborg_dashboard.api import Row
from cyborg_dashboard.tables import link, text


class Act(NamedTuple):
    """An action of the API on a member of a collection."""

    rule: str
    effect: str
    #: It can be done where this field of the member is that.
    field: str
    value: Any
    takes_reason: bool = False

    def fits(self, row: Row) -> bool:
        """Whether it can be done to the member."""
        return bool(row.get(self.field) == self.value)


class Place(NamedTuple):
    """Where the members of a collection are shown."""

    panel: str
    kind: str = "uuid"
    #: The page of a member; None if it has none.
    page: str | None = None


_TOLERANT = "Only profiles with accel:tolerate_taint are given"
_OFF = "It is offered to nobody any more. A guest that has it keeps it."
_DRAINED = "Nothing new of the host is given out. Guests keep what they have."
_REFUSED = "Nobody can ask for it any more. Requests that were made of it stay."
_TAINT, _HOST_TAINT = "cyborg:device:taint", "cyborg:host:taint"
_UPDATE = "cyborg:device_profile:update"
#: By collection and name.
_ACTS = {
    "devices": {
        "disable": Act("cyborg:device:disable", _OFF, "status", "enabled", takes_reason=True),
        "enable": Act("cyborg:device:enable", "It is offered again.", "status", "maintaining"),
        "taint": Act(_TAINT, f"{_TOLERANT} it.", "tainted", value=False, takes_reason=True),
        "untaint": Act(_TAINT, "Every profile can be given it again.", "tainted", value=True),
    },
    "hosts": {
        "drain": Act("cyborg:host:drain", _DRAINED, "drained", value=False, takes_reason=True),
        "undrain": Act("cyborg:host:undrain", "It is given out again.", "drained", value=True),
        "taint": Act(_HOST_TAINT, f"{_TOLERANT} of it.", "tainted", value=False, takes_reason=True),
        "untaint": Act(_HOST_TAINT, "Every profile can be given of it.", "tainted", value=True),
    },
    "device_profiles": {
        "disable": Act(_UPDATE, _REFUSED, "enabled", value=True),
        "enable": Act(_UPDATE, "It can be asked for again.", "enabled", value=False),
        "delete": Act("cyborg:device_profile:delete", "A flavor that names it fails.", "", None),
    },
    "function_pools": {
        "delete": Act("cyborg:function_pool:delete", "Deployables keep their programs.", "", None),
    },
}
_PLACES = {
    "devices": Place("accelerator_devices", page="detail"),
    "hosts": Place("accelerator_devices", kind="path", page="host"),
    "device_profiles": Place("accelerator_profiles"),
    "function_pools": Place("accelerator_pools"),
}


def row_actions(collection: str) -> tuple[type[tables.LinkAction], ...]:
    """The actions of the rows of a table."""
    return tuple(
        link(name, name.capitalize(), _address(collection, name), act.rule, act.fits)
        for name, act in _ACTS[collection].items()
    )


def links(request: http.HttpRequest, collection: str, key: str, row: Row) -> list[tuple[str, str]]:
    """What may be done to what a page is about: labels and addresses."""
    return [
        (name.capitalize(), urls.reverse(_address(collection, name), args=(key,)))
        for name, act in _ACTS[collection].items()
        if act.fits(row) and api.may(request, act.rule)
    ]


def _address(collection: str, name: str) -> str:
    return f"horizon:admin:{_PLACES[collection].panel}:{collection}_{name}"


class ActForm(pages.Form):
    """The reason, where there may be one."""

    reason = forms.CharField(
        required=False, max_length=1000, help_text="Kept, and shown to other administrators."
    )

    def __init__(self, request: http.HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        act = _ACTS[self.initial["collection"]][self.initial["name"]]
        if not (act.takes_reason and api.is_newest(request)):
            del self.fields["reason"]

    def send(self, cyborg: api.Cyborg, data: dict[str, Any]) -> str:
        """Do it."""
        key, name = str(self.initial["key"]), self.initial["name"]
        path = f"/{self.initial['collection']}/{api.quoted(key)}"
        if name == "delete":
            cyborg.call("DELETE", path)
        else:
            body = {"reason": data["reason"]} if data.get("reason") else None
            cyborg.call("POST", f"{path}/{name}", body=body)
        return f"{name.capitalize()}: {key}"


class ActView(pages.FormView):
    """The form of one act."""

    form_class = ActForm

    def setup(self, request: http.HttpRequest, **given: Any) -> None:
        """Say what it is about."""
        super().setup(request, **given)
        act = _ACTS[given["collection"]][given["name"]]
        self.rule, self.help_text = act.rule, f"{text(str(given['key']))}: {act.effect}"
        self.page_title = self.submit_label = given["name"].capitalize()

    def get_success_url(self) -> str:
        """The page of what it was done to."""
        place = _PLACES[self.kwargs["collection"]]
        args = (self.kwargs["key"],) if place.page else ()
        return urls.reverse(f"horizon:admin:{place.panel}:{place.page or 'index'}", args=args)


def urlpatterns(*collections: str) -> list[urls.URLPattern]:
    """The forms of all that is done to members of these collections."""
    return [
        urls.path(
            f"act/{collection}/{name}/<{_PLACES[collection].kind}:key>/", ActView.as_view(),
            {"collection": collection, "name": name}, name=f"{collection}_{name}",
        )
        for collection in collections
        for name in _ACTS[collection]
    ]
