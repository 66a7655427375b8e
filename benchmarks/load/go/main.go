// Publishes messages with the official Go client and prints the seconds that this took.
//
// Arguments: service URL, topic, number of messages, bytes of a value, number of keys.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

func main() {
	seconds, err := publish(os.Args[1], os.Args[2], numbers(os.Args[3:]))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(seconds)
}

func numbers(words []string) (found []int) {
	for _, word := range words {
		number, err := strconv.Atoi(word)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		found = append(found, number)
	}
	return found
}

func publish(url, topic string, n []int) (float64, error) {
	count, size, keys := n[0], n[1], n[2]
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: log.NewLoggerWithSlog(quiet)})
	if err != nil {
		return 0, err
	}
	defer client.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic:                   topic,
		BatchingMaxMessages:     1000,
		BatchingMaxPublishDelay: 10 * time.Millisecond,
		MaxPendingMessages:      10000,
	})
	if err != nil {
		return 0, err
	}
	value := make([]byte, size)
	for i := range value {
		value[i] = "0123456789abcdef"[i%16]
	}
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("key-%d", i)
	}
	var failed atomic.Pointer[error]
	began := time.Now()
	for i := 0; i < count; i++ {
		message := &pulsar.ProducerMessage{Payload: value, Key: names[i%keys]}
		producer.SendAsync(context.Background(), message,
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err != nil {
					failed.Store(&err)
				}
			})
	}
	if err := producer.FlushWithCtx(context.Background()); err != nil {
		return 0, err
	}
	seconds := time.Since(began).Seconds()
	if found := failed.Load(); found != nil {
		return 0, *found
	}
	return seconds, nil
}
