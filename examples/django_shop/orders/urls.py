"""The addresses of orders."""

from django.urls import path

from .views import place

urlpatterns = [path("", place)]
