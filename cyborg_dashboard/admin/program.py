# SPDX-License-Identifier: Apache-2.0
"""A deployable is programmed, and the operation is watched until it ends."""

from __future__ import annotations

from typing import Any, ClassVar

from django import http, urls
from horizon import forms

from cyborg_dashboard import api, pages
from cyborg_dashboard.api import Row
from cyborg_dashboard.tables import table, words

_HERE = "horizon:admin:accelerator_devices"
RULE = "cyborg:deployable:program"
_PROGRAMS = ("image_uuid", "image_name", "function_id", "function_name", "layout")
#: Seconds between two looks at an operation.
_POLL = 3

_EVENTS = table("events", "Progress", "at", "text", key=("at", "text"))


class ProgramForm(pages.Form):
    """An image, a function or a layout."""

    by = forms.ChoiceField(choices=[(name, words(name)) for name in _PROGRAMS], label="Program by")
    value = forms.CharField(max_length=255)

    def send(self, cyborg: api.Cyborg, data: dict[str, Any]) -> str:
        """Begin, and lead to the operation."""
        cyborg.need(api.NEWEST)
        path = f"/deployables/{self.initial['deployable']}/program"
        operation = cyborg.call("POST", path, body={data["by"]: data["value"]})
        self.leads_to = urls.reverse(f"{_HERE}:operation", args=(operation["uuid"],))
        return f"Operation {operation['uuid']} has been asked for."


class ProgramView(pages.FormView):
    """The form."""

    form_class = ProgramForm
    rule = RULE
    page_title = submit_label = "Program"
    help_text = "Of a function the newest image is written. Nobody may use the deployable."
    success_url = urls.reverse_lazy(f"{_HERE}:index")


class OperationView(pages.PageView):
    """An operation and its progress; the page is loaded again until it has ended."""

    page_title = "Operation {{ view.kwargs.uuid }}"
    index: ClassVar[str] = f"{_HERE}:index"
    table_classes = (_EVENTS,)

    def thing(self, cyborg: api.Cyborg) -> Row:
        """The operation."""
        cyborg.need(api.NEWEST)
        found: Row = cyborg.call("GET", f"/operations/{self.kwargs['uuid']}")
        return found

    def get(self, request: http.HttpRequest, *args: Any, **kwargs: Any) -> http.HttpResponse:
        """Show it."""
        answer = super().get(request, *args, **kwargs)
        if self.shown["ended_at"] is None:
            answer["Refresh"] = str(_POLL)
        return answer

    def facts(self) -> Row:
        """All but its progress."""
        return {name: value for name, value in self.shown.items() if name != "history"}

    def get_events_data(self) -> list[Row]:
        """What has happened."""
        return list(self.shown["history"])


urlpatterns = [
    urls.path("program/<uuid:deployable>/", ProgramView.as_view(), name="program"),
    urls.path("operation/<uuid:uuid>/", OperationView.as_view(), name="operation"),
]
