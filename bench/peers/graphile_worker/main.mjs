import { AT_ONCE, load, main, sleep } from "../contract.mjs";

const { Logger, makeWorkerUtils, run } = load("graphile-worker");
const logger = new Logger(() => () => {});

await main({
  async setup(connectionString) {
    const utils = await makeWorkerUtils({ connectionString, logger });
    await utils.migrate();
    await utils.release();
  },

  async bulk(connectionString, jobs, keys, clock) {
    const utils = await makeWorkerUtils({ connectionString, logger });
    await utils.migrate();
    clock.start();
    await utils.addJobs(
      Array.from({ length: jobs }, (_, n) => ({
        identifier: "noop",
        payload: { n },
        ...(keys && { jobKey: `job-${n}` }),
      })),
    );
    clock.stop();
  },

  async feed(connectionString, pace) {
    const utils = await makeWorkerUtils({ connectionString, logger });
    await pace((n) => utils.addJob("noop", { n }));
  },

  async work(connectionString, hit, style) {
    const concurrentJobs = style === "sleep" ? AT_ONCE : 24;
    const handlers = {
      async: async ({ n }) => hit(n),
      sleep: async ({ n }) => {
        hit(n);
        await sleep();
      },
    };
    const runner = await run({
      logger,
      taskList: { noop: handlers[style] },
      preset: {
        worker: {
          connectionString,
          concurrentJobs,
          maxPoolSize: 25,
          localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
    });
    await runner.promise;
  },
});
