package gateway

import (
	"reflect"
	"testing"

	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"github.com/stretchr/testify/assert"
)

// TestReload_EverySetting: whatever changes of a consumer is noticed: its
// subscription, its work or its fixed options are compared.
func TestReload_EverySetting(t *testing.T) {
	t.Parallel()
	var walk func(name string, field func(*config.Consumer) reflect.Value)
	walk = func(name string, field func(*config.Consumer) reflect.Value) {
		typ := field(&config.Consumer{}).Type()
		if typ.Kind() == reflect.Struct && typ != reflect.TypeFor[config.Start]() {
			for i := range typ.NumField() {
				walk(name+"."+typ.Field(i).Name, func(k *config.Consumer) reflect.Value { return field(k).Field(i) })
			}
			return
		}
		if name == "consumer.Name" {
			return // another consumer
		}
		base := func() *config.Config {
			return &config.Config{
				Handlers:  map[string]config.Handler{"": {}, "x": {PermanentIf: []string{"rows"}}},
				Consumers: []config.Consumer{{Conflicts: "keep"}},
			}
		}
		was, next := base(), base()
		change(t, name, field(&next.Consumers[0]))
		before, k := &was.Consumers[0], &next.Consumers[0]
		h, _ := was.HandlerOf(0)
		noticed := !reflect.DeepEqual(pulling(before), pulling(k)) || changedWork(&h, next, 0, before, k) ||
			!reflect.DeepEqual(consumerOptions(before), consumerOptions(k))
		assert.True(t, noticed, name)
	}
	walk("consumer", func(k *config.Consumer) reflect.Value { return reflect.ValueOf(k).Elem() })
}

// change gives a zero value another one.
func change(t *testing.T, name string, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
		if name == "consumer.Conflicts" {
			v.SetString("ignore")
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Struct:
		change(t, name, v.Field(0))
	default:
		t.Fatalf("%s is a %v: nothing is known of such settings", name, v.Kind())
	}
}
