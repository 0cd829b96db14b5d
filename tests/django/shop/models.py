"""The orders of a shop."""

from django.db import models


class Order(models.Model):
    """What somebody has ordered."""

    number = models.IntegerField()
    note = models.TextField(default="")

    class Meta:
        app_label = "shop"
