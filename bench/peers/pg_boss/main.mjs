import { AT_ONCE, load, main, sleep } from "../contract.mjs";

const { PgBoss } = load("pg-boss");
const CHUNK = 10_000;

async function boss(connectionString) {
  const found = new PgBoss({ connectionString, max: 10, useListenNotify: true });
  found.on("error", (error) => console.error(error));
  await found.start();
  return found;
}

await main({
  async setup(url) {
    await (await boss(url)).createQueue("jobs", { notify: true });
  },

  async bulk(url, jobs, keys, clock) {
    const client = await boss(url);
    await client.getQueues();
    clock.start();
    for (let start = 0; start < jobs; start += CHUNK) {
      const some = Math.min(CHUNK, jobs - start);
      await client.insert("jobs", Array.from({ length: some }, (_, n) => ({ data: { n: start + n } })));
    }
    clock.stop();
  },

  async feed(url, pace) {
    const client = await boss(url);
    await pace((n) => client.send("jobs", { n }));
  },

  async work(url, hit, style) {
    const client = await boss(url);
    const sleeps = style === "sleep";
    const options = {
      batchSize: sleeps ? AT_ONCE : 1000,
      localConcurrency: sleeps ? 1 : 5,
      pollingIntervalSeconds: 0.5,
      burstWhenBatchFull: true,
    };
    await client.work("jobs", options, async (jobs) => {
      for (const job of jobs) hit(job.data.n);
      if (sleeps) await sleep();
    });
  },
});
