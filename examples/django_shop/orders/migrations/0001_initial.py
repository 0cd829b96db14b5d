"""The tables of orders and receipts."""

from typing import Any, ClassVar

import django.db.models.deletion
from django.db import migrations, models

ID = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    """Creates them."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", ID),
                ("email", models.EmailField(max_length=254)),
                ("amount", models.IntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Receipt",
            fields=[
                ("id", ID),
                (
                    "order",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="orders.order"
                    ),
                ),
            ],
        ),
    ]
