"""The record over HTTP: activity, strikes, numbers over time, and what is redacted of them."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Client
from holdfast.server import Settings
from tests.server.conftest import Api
