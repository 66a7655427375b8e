// Numbers publishes "go-0", "go-1" and so on with the official Go client to a partitioned topic,
// and consumes all that is in it, until its input says "stop"; it consumes on until its input ends.
//
// Arguments: service URL, topic, milliseconds between two messages. It prints "receipt PARTITION
// TEXT" and "delivered PARTITION TEXT", "failed REASON", and "flushed" when there is an answer to
// each message.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const name = "go"

var writing sync.Mutex

func say(format string, args ...any) {
	writing.Lock()
	defer writing.Unlock()
	fmt.Printf(format+"\n", args...)
}

func main() {
	pause, err := strconv.Atoi(os.Args[3])
	if err == nil {
		err = run(os.Args[1], os.Args[2], time.Duration(pause)*time.Millisecond)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(url, topic string, pause time.Duration) error {
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:              url,
		OperationTimeout: 30 * time.Second,
		Logger:           log.NewLoggerWithSlog(quiet),
	})
	if err != nil {
		return err
	}
	defer client.Close()
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: name,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		return err
	}
	go consume(consumer)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, Name: name, SendTimeout: -1, // none
		BatchingMaxMessages: 10, // it goes to the next partition after a tenth of that, not of 1000
	})
	if err != nil {
		return err
	}
	input := bufio.NewReader(os.Stdin)
	stopped := make(chan error)
	go func() {
		_, err := input.ReadString('\n')
		stopped <- err
	}()
	if err := publish(producer, pause, stopped); err != nil {
		return err
	}
	say("flushed")
	_, err = io.ReadAll(input)
	return err
}

func publish(producer pulsar.Producer, pause time.Duration, stopped <-chan error) error {
	for number := 0; ; number++ {
		text := fmt.Sprintf("%s-%d", name, number)
		message := pulsar.ProducerMessage{Payload: []byte(text)}
		producer.SendAsync(context.Background(), &message,
			func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err != nil {
					say("failed %s: %v", text, err)
				} else {
					say("receipt %d %s", id.PartitionIdx(), text)
				}
			})
		select {
		case err := <-stopped:
			if err != nil {
				return err
			}
			return producer.FlushWithCtx(context.Background())
		case <-time.After(pause):
		}
	}
}

func consume(consumer pulsar.Consumer) {
	for {
		message, err := consumer.Receive(context.Background())
		if err != nil {
			return // the client was closed
		}
		say("delivered %d %s", message.ID().PartitionIdx(), message.Payload())
		if err := consumer.Ack(message); err != nil {
			fmt.Fprintln(os.Stderr, "not acknowledged:", err) // it is delivered again
		}
	}
}
