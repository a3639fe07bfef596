package console

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
)

const defaultsPath = "/api/v1/admin/default-sms"

func (p *page) defaultSMSes() error {
	query := p.query("phone_number", "is_sent", "after")
	return showFiltered[api.Page[api.DefaultSMSResponse]](p, defaultsPath, query, "default_sms_list", p.T("Default SMS"))
}

func (p *page) addDefaultSMS() error {
	added, err := post[api.DefaultSMSResponse](p, defaultsPath, api.DefaultSMSRequest{
		PhoneNumber: p.PostFormValue("phone_number"), Content: p.PostFormValue("content"), UseTemplate: p.PostFormValue("use_template") != "",
	})
	if err != nil {
		return p.showRefused(err, "/console/default-sms", (*page).defaultSMSes)
	}
	return p.done("/console/default-sms/"+added.ID.String(), "saved")
}

func (p *page) defaultSMS() error {
	return showGet[api.DefaultSMSResponse](p, defaultsPath+"/"+p.id(), nil, "default_sms", p.T("Default SMS"))
}

func (p *page) editDefaultSMS() error {
	content, useTemplate := p.PostFormValue("content"), p.PostFormValue("use_template") != ""
	return p.callDefaultSMS(http.MethodPut, "", api.DefaultSMSChange{Content: &content, UseTemplate: &useTemplate}, "saved")
}

// changeDefaultSMS handles the buttons of the page: reset or delete.
func (p *page) changeDefaultSMS() error {
	switch p.PathValue("do") {
	case "reset":
		return p.callDefaultSMS(http.MethodPost, "/reset", nil, "default_reset")
	case "delete":
		if err := p.API(http.MethodDelete, defaultsPath+"/"+p.id(), nil, nil); err != nil {
			return err
		}
		return p.done("/console/default-sms", "deleted")
	}
	return p.notFound()
}

// callDefaultSMS calls a route of the default SMS in the address, and ends the change.
func (p *page) callDefaultSMS(method, suffix string, body any, notice string) error {
	id := p.id()
	err := p.API(method, defaultsPath+"/"+id+suffix, body, nil)
	return p.finish(err, "/console/default-sms/"+id, (*page).defaultSMS, notice)
}
