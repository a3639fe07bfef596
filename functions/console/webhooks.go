package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
)

const endpointsPath, deliveriesPath = "/api/v1/webhooks/endpoints", "/api/v1/webhooks/deliveries"

// mayChangeEndpointsOf reports whether the visitor may change the webhook endpoints of a caller.
func (p *page) mayChangeEndpointsOf(caller api.ID) bool {
	return p.MayChangeAll() || p.MaySubmit() && int64(caller) == p.Caller.ID
}

type endpointsPage struct {
	api.Page[api.EndpointResponse]
	Events  []string // to which a new endpoint can subscribe
	Formats []string // of a new endpoint
}

func (p *page) endpoints() error {
	response, err := get[api.Page[api.EndpointResponse]](p, endpointsPath, p.query("caller_id", "limit", "after"))
	if err != nil && !p.keepRefusal(err) {
		return err
	}
	var owners []api.ID
	for _, e := range response.Items {
		owners = append(owners, e.CallerID)
	}
	if err := p.nameCallers(owners...); err != nil {
		return err
	}
	shown := endpointsPage{Page: response, Events: endpointEvents, Formats: endpointFormats}
	if p.MayChangeAll() {
		shown.Events = slices.Concat(endpointEvents, alertEvents)
	}
	return p.show("endpoints", p.T("Webhooks"), shown)
}

// isRobot reports whether an endpoint is a chat robot. The secret of a robot is made in its chat group, so the console does not show it.
func isRobot(format string) bool { return format != "cloudevents" }

// addEndpoint adds an endpoint. Unless the endpoint is a robot, the response shows its secret, which is never shown again.
func (p *page) addEndpoint() error {
	added, err := post[api.EndpointResponse](p, endpointsPath, api.EndpointRequest{
		URL: p.PostFormValue("url"), Description: p.PostFormValue("description"), Events: p.PostForm["events"], Format: p.PostFormValue("format"),
		Secret: p.PostFormValue("secret"),
	})
	if err != nil {
		return p.showRefused(err, "/console/webhooks", (*page).endpoints)
	}
	if isRobot(added.Format) {
		return p.done("/console/webhooks/"+added.ID, "robot_added")
	}
	return p.showEndpointSecret(added)
}

func (p *page) showEndpointSecret(e api.EndpointResponse) error {
	p.setAddress("/console/webhooks/" + e.ID)
	return p.show("endpoint_secret", p.T("Secret of an endpoint"), e)
}

type endpointPage struct {
	api.EndpointResponse
	Deliveries []api.DeliveryResponse // the newest 20
	MayChange  bool
}

func (e endpointPage) Robot() bool { return isRobot(e.Format) }

func (p *page) endpoint() error {
	id := p.PathValue("id")
	response, err := get[api.EndpointResponse](p, endpointsPath+"/"+url.PathEscape(id), nil)
	if err != nil {
		return err
	}
	newest, err := get[api.Page[api.DeliveryResponse]](p, deliveriesPath, url.Values{"endpoint_id": {id}, "limit": {"20"}})
	if err != nil {
		return err
	}
	if err := p.nameCallers(response.CallerID); err != nil {
		return err
	}
	return p.show("endpoint", p.T("Endpoint"), endpointPage{response, newest.Items, p.mayChangeEndpointsOf(response.CallerID)})
}

// changeEndpoint handles the buttons of an endpoint's page: enable, disable, delete, rotate or test.
func (p *page) changeEndpoint() error {
	do, id := p.PathValue("do"), p.id()
	path, back := endpointsPath+"/"+id, "/console/webhooks/"+id
	var err error
	switch do {
	case "enable", "disable":
		err = p.API(http.MethodPost, path+"/"+do, nil, nil)
	case "delete":
		err, back = p.API(http.MethodDelete, path, nil, nil), "/console/webhooks"
	case "rotate":
		var rotated api.EndpointResponse
		if rotated, err = post[api.EndpointResponse](p, path+"/rotate-secret", nil); err == nil {
			return p.showEndpointSecret(rotated)
		}
	case "test":
		var sent api.DeliveryResponse
		sent, err = post[api.DeliveryResponse](p, path+"/test", nil)
		back = "/console/webhooks/deliveries/" + sent.ID
	default:
		return p.notFound()
	}
	if err != nil {
		return p.showRefused(err, "/console/webhooks/"+id, (*page).endpoint)
	}
	return p.done(back, "endpoint_"+do)
}

type deliveriesPage struct {
	api.Page[api.DeliveryResponse]
	States []string
}

func (p *page) deliveries() error {
	response, err := getFiltered[api.Page[api.DeliveryResponse]](p, deliveriesPath, "state", "endpoint_id", "task_id", "caller_id", "from", "to", "limit", "after")
	if err != nil {
		return err
	}
	return p.show("deliveries", p.T("Deliveries"), deliveriesPage{response, deliveryStates})
}

// resendFailed resends the deliveries that failed since a time: at most as many as one call of the API resends (500).
func (p *page) resendFailed() error {
	back := "/console/webhooks/deliveries"
	if endpoint := p.PostFormValue("endpoint_id"); endpoint != "" {
		back += "?" + url.Values{"endpoint_id": {endpoint}}.Encode()
	}
	since, err := p.typedPast("since")
	if err != nil {
		return p.showRefused(err, back, (*page).deliveries)
	}
	done, err := post[api.DeliveriesResendResponse](p, deliveriesPath+"/resend", api.DeliveriesResendRequest{
		Since: since, EndpointID: p.PostFormValue("endpoint_id"), Reason: p.PostFormValue("reason"),
	})
	if err != nil {
		return p.showRefused(err, back, (*page).deliveries)
	}
	notice := "resent"
	if done.More {
		notice = "resent_more"
	}
	return p.doneMany(back, notice, done.Resent)
}

type deliveryPage struct{ api.DeliveryResponse }

func (p *page) delivery() error {
	response, err := get[api.DeliveryResponse](p, deliveriesPath+"/"+p.id(), nil)
	if err != nil {
		return err
	}
	return p.show("delivery", p.T("Delivery"), deliveryPage{response})
}

func (p *page) resendDelivery() error {
	id := p.id()
	err := p.API(http.MethodPost, deliveriesPath+"/"+id+"/resend", nil, nil)
	return p.finish(err, "/console/webhooks/deliveries/"+id, (*page).delivery, "delivery_resent")
}

// TaskID returns the id of the task of the event, or "" if the event is not about a task.
func (d deliveryPage) TaskID() string {
	if strings.HasPrefix(d.EventType, "sendonce.task.") {
		return d.Subject
	}
	return ""
}
