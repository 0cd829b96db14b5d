// What contract.py is to Python, for River: the same command line, ledger and lines.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const warmUp = 16

type noop struct {
	N int `json:"n"`
}

func (noop) Kind() string { return "noop" }

type clock struct {
	began        time.Time
	used         float64
	seconds, cpu float64
}

func (c *clock) start() { c.began, c.used = time.Now(), cpu() }
func (c *clock) stop()  { c.seconds, c.cpu = time.Since(c.began).Seconds(), cpu()-c.used }

func cpu() float64 {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

func now() float64 { return float64(time.Now().UnixNano()) / 1e9 }

// ledger has a byte for each job's count, and a double behind all counts for its time. Handlers run
// on several threads, and a byte cannot be counted up in one step: whoever is first writes the time.
type ledger struct {
	memory  []byte
	timesAt int
	began   []atomic.Bool
}

func openLedger(path string, jobs int) *ledger {
	file := must(os.OpenFile(path, os.O_RDWR, 0))
	timesAt := (jobs + 7) / 8 * 8
	memory := must(syscall.Mmap(int(file.Fd()), 0, timesAt+8*jobs,
		syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED))
	return &ledger{memory, timesAt, make([]atomic.Bool, jobs)}
}

func (l *ledger) hit(job int) {
	if l.began[job].Swap(true) {
		l.memory[job] = 2
		return
	}
	at := l.memory[l.timesAt+8*job:]
	binary.NativeEndian.PutUint64(at, math.Float64bits(now()))
	l.memory[job] = 1
}

type worker struct {
	river.WorkerDefaults[noop]
	ledger *ledger
	sleep  time.Duration
}

func (w *worker) Work(_ context.Context, job *river.Job[noop]) error {
	w.ledger.hit(job.Args.N)
	time.Sleep(w.sleep)
	return nil
}

func main() {
	workers := flag.Int("workers", 100, "jobs at once")
	flag.Parse()
	action, url, rest := flag.Arg(0), flag.Arg(1), flag.Args()[2:]
	ctx := context.Background()
	config := must(pgxpool.ParseConfig(url))
	config.MaxConns = 10
	pool := must(pgxpool.NewWithConfig(ctx, config))
	check(pool.Ping(ctx))
	var timed clock
	switch action {
	case "setup":
		migrator := must(rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet()}))
		must(migrator.Migrate(ctx, rivermigrate.DirectionUp, nil))
		return
	case "work":
		work(ctx, pool, openLedger(rest[0], number(rest[1])), rest[2], *workers)
		return
	case "bulk":
		bulk(ctx, pool, number(rest[0]), rest[1] == "keys", &timed)
	case "feed":
		feed(ctx, pool, number(rest[0]), must(strconv.ParseFloat(rest[1], 64)), rest[2], &timed)
	default:
		log.Fatalf("there is no action %q", action)
	}
	fmt.Println(string(must(json.Marshal(map[string]float64{"seconds": timed.seconds, "cpu": timed.cpu}))))
}

func bulk(ctx context.Context, pool *pgxpool.Pool, jobs int, keys bool, timed *clock) {
	client := inserter(pool)
	var options *river.InsertOpts
	if keys {
		options = &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	}
	timed.start()
	many := make([]river.InsertManyParams, jobs)
	for n := range many {
		many[n] = river.InsertManyParams{Args: noop{n}, InsertOpts: options}
	}
	must(client.InsertManyFast(ctx, many))
	timed.stop()
}

func feed(ctx context.Context, pool *pgxpool.Pool, jobs int, interval float64, answered string, timed *clock) {
	client := inserter(pool)
	times := make([]float64, jobs)
	began := time.Now()
	for n := range jobs {
		if n == warmUp {
			timed.start()
		}
		if interval > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(float64(n) * interval * 1e9))))
		}
		must(client.Insert(ctx, noop{n}, nil))
		times[n] = now()
	}
	timed.stop()
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&times[0])), 8*jobs)
	check(os.WriteFile(answered, bytes, 0o600))
}

func work(ctx context.Context, pool *pgxpool.Pool, ledger *ledger, style string, atOnce int) {
	handler := &worker{ledger: ledger}
	if style == "sleep" {
		handler.sleep = 10 * time.Millisecond
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, handler)
	client := must(river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Logger:            quiet(),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: atOnce}},
		Workers:           workers,
	}))
	check(client.Start(ctx))
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	check(client.StopAndCancel(ctx))
}

func inserter(pool *pgxpool.Pool) *river.Client[pgx.Tx] {
	return must(river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet()}))
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

func number(text string) int { return must(strconv.Atoi(text)) }

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
