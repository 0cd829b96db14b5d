"""The shop's tests: `python manage.py test`."""

from django.core.management import call_command
from django.test import TestCase, TransactionTestCase

from holdfast import Client

from .models import Order, Receipt
from .tasks import count_orders, send_receipt


class PlaceOrder(TestCase):
    """Orders and jobs, in the transaction of the test."""

    def place(self, **order: object) -> dict[str, str]:
        """Place an order as a browser does."""
        answer = self.client.post("/orders/", order, content_type="application/json")
        placed: dict[str, str] = answer.json()
        return placed

    def test_an_order_comes_with_the_job_for_its_receipt(self) -> None:
        placed = self.place(email="ada@example.org", amount=5)

        result = send_receipt.get_result(placed["receipt"])
        assert result.status == "READY"
        assert result.args == [placed["order"]]

    def test_an_order_that_is_refused_leaves_nothing(self) -> None:
        with self.assertRaisesMessage(ValueError, "refused"):
            self.place(email="ada@example.org", amount=5000)

        assert Order.objects.count() == 0

    def test_a_task_can_be_called_directly(self) -> None:
        Order.objects.create(email="ada@example.org", amount=5)

        assert count_orders.call() == 1


class Worked(TransactionTestCase):
    """What a worker makes of it: it has connections of its own, so it needs what is committed."""

    def test_an_order_gets_one_receipt(self) -> None:
        order = Order.objects.create(email="ada@example.org", amount=5)
        first, second = send_receipt.enqueue(order.id), send_receipt.enqueue(order.id)
        call_command("holdfast_worker", until_idle=True)

        assert first.id == second.id
        assert Receipt.objects.count() == 1
        first.refresh()
        assert first.status == "SUCCESSFUL"

    def test_jobs_of_the_test_before_are_gone(self) -> None:
        from holdfast.django import app_of

        with Client(app_of().url) as client:
            assert client.jobs.list() == []
