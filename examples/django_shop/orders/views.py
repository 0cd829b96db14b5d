"""What the shop answers."""

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from .models import Order
from .tasks import send_receipt


@csrf_exempt
def place(request: HttpRequest) -> JsonResponse:
    """Store an order and the job that sends its receipt: both or neither."""
    said = json.loads(request.body)
    with transaction.atomic():
        order = Order.objects.create(email=said["email"], amount=said["amount"])
        receipt = send_receipt.enqueue(order.id)
        if order.amount > 1000:
            raise ValueError("the card was refused")
    return JsonResponse({"order": order.id, "receipt": receipt.id})
