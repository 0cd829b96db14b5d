"""A shop that is never quiet: orders come in, mails go out, some of them fail.

holdfast dev examples/shop/app.py
"""

import asyncio
import random

import holdfast
from holdfast.outcome import Fixed

app = holdfast.App(name="shop")


@app.schedule(every=1, overlap="skip")
@app.task(queue="orders")
def take_orders() -> None:
    """A second's worth of customers."""
    for _ in range(random.randint(1, 6)):
        order = random.randint(1, 99_999)
        ship.options(key=f"order-{order}").enqueue(order)
        send_mail.enqueue(f"customer{order}@example.org", "Thank you for your order")
    if random.random() < 0.2:
        resize.enqueue(f"photo-{random.randint(1, 999)}.jpg", sizes=9)
    if random.random() < 0.1:
        price.options(lane=random.choice(["eu", "us"])).enqueue(random.choice(["base", "up"]))


@app.task(queue="orders", priority=5)
async def ship(order: int) -> None:
    await asyncio.sleep(random.uniform(0.05, 0.4))


@app.task(queue="mail", max_attempts=3, retry=Fixed(2))
async def send_mail(to: str, subject: str) -> None:
    await asyncio.sleep(random.uniform(0.02, 0.2))
    if random.random() < 0.1:
        raise TimeoutError("no answer from smtp.example.org in 30 s")
    if to.endswith("7@example.org"):
        raise ValueError(f"550 no such user {to}")


@app.task(queue="images")
async def resize(photo: str, sizes: int) -> None:
    """Shows how far it is."""
    job = holdfast.current()
    for done in range(1, sizes + 1):
        await asyncio.sleep(0.5)
        job.progress(done, sizes, note=photo)


@app.task(queue="pricing")
async def price(scenario: str) -> None:
    """One at a time in each market, in order: that is what its lane is for."""
    await asyncio.sleep(4)


@app.schedule("0 2 * * *", tz="Europe/Berlin")
@app.task(queue="orders")
async def nightly_report() -> None:
    await asyncio.sleep(1)
