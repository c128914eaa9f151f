"""JSON over HTTP with the standard library: one question, one answer, failures with names."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from vllm_neuron.errors import ConfigError, NeuronError


class NoAnswerError(NeuronError):
    """A server that ended, does not answer in time, or answers what is no JSON."""


class RequestRefusedError(NeuronError):
    """A server that answers and refuses the request (HTTP 4xx)."""


@dataclass(frozen=True)
class Endpoint:
    """A server of the OpenAI API.

    Attributes:
        url: ``http://host:port``, without ``/v1``.
        timeout: seconds that an answer may take.
        key: API key; empty for none.
    """

    url: str
    timeout: float
    key: str = ""

    @classmethod
    def parse(cls, url: str, *, timeout: float, key: str = "") -> Endpoint:
        """An endpoint from what a user writes; a trailing ``/v1`` is dropped.

        Raises:
            ConfigError: no http or https URL with a host.
        """
        try:
            parts = urlsplit(url)
            right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            right = False
        if not right:
            raise ConfigError("--server", url, "a URL like http://127.0.0.1:8000")
        return cls(url.rstrip("/").removesuffix("/v1").rstrip("/"), timeout, key)

    def get(self, path: str) -> Any:
        """Ask without a body; see :meth:`post`."""
        return self._ask(path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Ask with a JSON body.

        Raises:
            RequestRefusedError: the server's answer is a 4xx status; its message is the value.
            NoAnswerError: no connection, an answer that breaks off or takes too long, a 5xx status, no JSON.
        """
        return self._ask(path, json.dumps(body).encode())

    def _ask(self, path: str, body: bytes | None) -> Any:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        request = urllib.request.Request(f"{self.url}{path}", data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise RequestRefusedError(
                    f"{self.url}{path}", _message(error), f"an answer, not {error.code}"
                ) from None
            raise self._silent(path, f"status {error.code}: {_message(error)}") from None
        except TimeoutError:
            raise self._silent(path, f"nothing within {self.timeout:g} s") from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._silent(path, f"nothing within {self.timeout:g} s") from None
            raise self._silent(path, str(error.reason)) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(path, str(error) or type(error).__name__) from None
        except ValueError:
            raise self._silent(path, "no JSON") from None

    def _silent(self, path: str, why: str) -> NoAnswerError:
        return NoAnswerError(f"{self.url}{path}", why, "an answer", "Is the server there, and is its model loaded?")


def _message(error: urllib.error.HTTPError) -> str:
    """What the server says, without the frame around it."""
    try:
        text = error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return error.reason
    try:
        document = json.loads(text)
    except ValueError:
        return text[:300] or str(error.reason)
    inner = document.get("error", document) if isinstance(document, dict) else document
    return str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner)
