# SPDX-License-Identifier: Apache-2.0
"""What is done to devices and hosts, some of it with a reason: one form for all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from django import http, urls
from horizon import forms, tables

from cyborg_dashboard import api, pages
from cyborg_dashboard.api import Row


class Act(NamedTuple):
    """An action of the API on a member of a collection."""

    label: str
    rule: str
    effect: str
    #: Whether it can be done to the member as the API shows it.
    fits: Callable[[Row], bool]
    takes_reason: bool = False


_TOLERANT = "Only profiles with accel:tolerate_taint are given"
#: By collection and name.
_ACTS = {
    "devices": {
        "disable": Act(
            "Disable",
            "cyborg:device:disable",
            "It is offered to nobody any more. A guest that has it keeps it.",
            lambda device: device.get("status") != "maintaining",
            takes_reason=True,
        ),
        "enable": Act(
            "Enable",
            "cyborg:device:enable",
            "It is offered again.",
            lambda device: device.get("status") != "enabled",
        ),
        "taint": Act(
            "Taint",
            "cyborg:device:taint",
            f"{_TOLERANT} it.",
            lambda device: device.get("tainted") is False,
            takes_reason=True,
        ),
        "untaint": Act(
            "Untaint",
            "cyborg:device:taint",
            "Every profile can be given it again.",
            lambda device: device.get("tainted") is True,
        ),
    },
    "hosts": {
        "drain": Act(
            "Drain",
            "cyborg:host:drain",
            "Nothing new of the host is given out. Guests keep what they have.",
            lambda host: not host["drained"],
            takes_reason=True,
        ),
        "undrain": Act(
            "Undrain",
            "cyborg:host:undrain",
            "The accelerators of the host are given out again.",
            lambda host: bool(host["drained"]),
        ),
        "taint": Act(
            "Taint",
            "cyborg:host:taint",
            f"{_TOLERANT} the accelerators of the host.",
            lambda host: not host["tainted"],
            takes_reason=True,
        ),
        "untaint": Act(
            "Untaint",
            "cyborg:host:taint",
            "Every profile can be given the accelerators of the host again.",
            lambda host: bool(host["tainted"]),
        ),
    },
}


def link(collection: str, name: str) -> type[tables.LinkAction]:
    """The action of a row."""
    act = _ACTS[collection][name]

    class Link(tables.LinkAction):
        verbose_name = act.label
        classes = ("ajax-modal",)
        policy_rules = (("accelerator", act.rule),)

        def get_link_url(self, datum: Row) -> str:
            return _url(collection, name, datum["uuid"])

        def allowed(self, _request: http.HttpRequest, datum: Row) -> bool:
            return act.fits(datum)

    Link.name = name
    return Link


def links(request: http.HttpRequest, collection: str, key: str, row: Row) -> list[tuple[str, str]]:
    """What may be done to what a page is about: labels and addresses."""
    return [
        (act.label, _url(collection, name, key))
        for name, act in _ACTS[collection].items()
        if act.fits(row) and api.may(request, act.rule)
    ]


def _url(collection: str, name: str, key: str) -> str:
    return urls.reverse(f"horizon:admin:accelerator_devices:act_{collection}", args=(name, key))


class ActForm(pages.Form):
    """The reason, where there may be one."""

    reason = forms.CharField(
        required=False, max_length=1000, help_text="Kept, and shown to other administrators."
    )

    def __init__(self, request: http.HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        self._collection, self._name = self.initial["collection"], self.initial["name"]
        if not (_ACTS[self._collection][self._name].takes_reason and api.is_newest(request)):
            del self.fields["reason"]

    def send(self, cyborg: api.Cyborg, data: dict[str, Any]) -> str:
        """Do it."""
        key = str(self.initial["key"])
        body = {"reason": data["reason"]} if data.get("reason") else None
        cyborg.call("POST", f"/{self._collection}/{api.quoted(key)}/{self._name}", body=body)
        return f"{_ACTS[self._collection][self._name].label}: {key}"


class ActView(pages.FormView):
    """The form of one act."""

    form_class = ActForm

    def dispatch(self, request: http.HttpRequest, **given: Any) -> http.HttpResponse:
        """Answer, if there is such an act."""
        act = _ACTS.get(given["collection"], {}).get(given["name"])
        if act is None:
            raise http.Http404
        self.page_title = self.submit_label = act.label
        self.help_text = f"{given['key']}: {act.effect}"
        return super().dispatch(request, **given)

    def get_success_url(self) -> str:
        """The page of what it was done to."""
        kind = "detail" if self.kwargs["collection"] == "devices" else "host"
        return urls.reverse(f"horizon:admin:accelerator_devices:{kind}", args=(self.kwargs["key"],))


urlpatterns = [
    urls.path(
        f"act/{collection}/<slug:name>/<{key}:key>/",
        ActView.as_view(),
        {"collection": collection},
        name=f"act_{collection}",
    )
    for collection, key in (("devices", "uuid"), ("hosts", "path"))
]
