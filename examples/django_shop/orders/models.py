"""Orders, and the receipts that were sent for them."""

from django.db import models


class Order(models.Model):
    """What somebody has ordered."""

    email = models.EmailField()
    amount = models.IntegerField()


class Receipt(models.Model):
    """A receipt; there must never be two for an order."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)
