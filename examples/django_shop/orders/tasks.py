"""The shop's background work."""

import logging

import django

from holdfast import current
from holdfast.django import schedule

from .models import Order, Receipt

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task

log = logging.getLogger(__name__)


@task(queue_name="mail", max_attempts=5, retry=1, key=lambda order_id: f"receipt-{order_id}")
def send_receipt(order_id: int) -> None:
    """Make out the receipt of an order: once, however often a worker dies on the way."""
    order = Order.objects.get(id=order_id)
    with current().transaction():  # the receipt and the end of this job are one commit
        Receipt.objects.create(order=order)


@schedule("0 7 * * *", tz="Europe/Paris")
@task(priority=-10)
def count_orders() -> int:
    """Count the orders every morning."""
    orders = Order.objects.count()
    log.info("%d orders", orders)
    return orders
